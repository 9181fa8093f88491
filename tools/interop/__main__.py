"""`make interop`: moves containers between a real Ozone and agents, and heals damage."""

import sys

from tools.interop.healing import main

sys.exit(main())

"""`make interop`: moves containers between datanodes of a real Ozone and agents, and repairs
damage."""

import sys

from tools.interop.healing import main

sys.exit(main())

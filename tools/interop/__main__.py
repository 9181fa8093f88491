"""`make interop`: containers move between a real Ozone and agents, and what is damaged heals."""

import sys

from tools.interop.healing import main

sys.exit(main())

"""`python -m charwise`."""

import sys

from charwise.cli import main

sys.exit(main())

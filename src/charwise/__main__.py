"""`python -m charwise`."""

import sys

from charwise.cli.app import main

sys.exit(main())

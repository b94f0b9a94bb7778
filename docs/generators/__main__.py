"""Write everything in docs/ that is made from code and result files: `python docs/generators`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from generators import filled, pages, studies

for part in (pages, studies, filled):
    part.write()

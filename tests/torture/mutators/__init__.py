"""One way for each rule in which a right history is made a wrong one.

Each takes a ``Made`` and returns the rules of which one at least must be found; None when the history has
no place for it.
"""

from mutators import contents, versions
from mutators.registry import MUTATORS

__all__ = ["MUTATORS", "contents", "versions"]

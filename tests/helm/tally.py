"""What was checked, counted: a check of nothing passes too easily."""

from collections import Counter

tally = Counter()


def counted(what, things):
    """The things, each counted as it is taken; none at all is a mistake of the check."""
    things = list(things)
    assert things, f"no {what} to check"
    tally[what] += len(things)
    return things

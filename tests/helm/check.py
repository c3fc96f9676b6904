"""Runs every check of the chart and the Dockerfile, and says how much there was to check."""

import os
import sys
import unittest

import chart_test
import image_test
import settings_test
from tally import tally


def main():
    load = unittest.defaultTestLoader.loadTestsFromModule
    suite = unittest.TestSuite(load(module) for module in (chart_test, settings_test, image_test))
    outcome = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    # A failed subtest is counted by itself; a test fails once.
    failed = len({getattr(test, "test_case", test).id() for test, _ in outcome.failures + outcome.errors})
    for what, number in tally.items():
        print(f"{number:6} {what}")
    counts = f"{outcome.testsRun - failed} passed, {failed} failed"
    print(counts)
    if path := os.environ.get("INTENT_LEDGER_TEST_COUNTS"):
        with open(path, "a") as file:
            print(counts, file=file)
    return 0 if failed == 0 and outcome.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())

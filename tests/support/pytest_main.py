"""Runs one test file under Bazel, whose `py_test` starts a program and knows no pytest."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))

"""The documentation is tested: its blocks run or parse, its links lead somewhere."""

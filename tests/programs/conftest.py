"""The scripts are programs, run by the test."""

collect_ignore = ["scripts"]

"""The command line: arguments to frozen configuration, results to standard output."""

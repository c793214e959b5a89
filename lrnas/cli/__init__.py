"""The command line: reads arguments, calls one function, and prints the result."""

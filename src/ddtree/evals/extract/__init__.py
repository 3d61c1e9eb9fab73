"""From what a model wrote to a program that can be tested; nothing is run to choose."""

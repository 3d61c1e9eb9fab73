"""A decoder of the Llama family with as few launches as it takes: the fast twin of transformers'
forward pass and of the drafter's, over the same weights."""

"""A tokenizer whose tokens are words: token n is the word tn."""

from tokenizers import Tokenizer, models, pre_tokenizers


def word_tokenizer(vocabulary: int) -> Tokenizer:
    """Words of the first `vocabulary` tokens, apart by blanks; any other word is t0."""
    made = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocabulary)}, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made

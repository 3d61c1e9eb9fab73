"""DDTREE as a speculative algorithm of a stock SGLang.

SGLang finds `plugin.register` through its entry point group `sglang.srt.plugins`. What is assumed
of SGLang stands in two places: `contract` lists every name with its parameters, and `adapter` is
the one module of the rounds that uses them.
"""

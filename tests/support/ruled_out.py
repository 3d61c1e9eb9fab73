"""Targets whose own logits are minus infinity for some ids, as models mask what must not come."""

import torch


def rule_out(target, ids, value=-torch.inf):
    """From here on the model's head gives `ids` the logit `value`, whatever the text."""
    columns = torch.tensor(ids)

    def mask(_module, _args, logits):
        return logits.index_fill(-1, columns, value)

    target.model.get_output_embeddings().register_forward_hook(mask)

//! Other people's files → named tensors + config + tokenizer + template.

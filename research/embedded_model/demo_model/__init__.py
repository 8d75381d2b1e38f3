"""The pieces that make the embedded demonstration model: dialogues, tokenizer, network, export."""

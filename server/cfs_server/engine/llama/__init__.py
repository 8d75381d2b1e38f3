"""llama.cpp: its library, models, tokenizers and costs (E1)."""

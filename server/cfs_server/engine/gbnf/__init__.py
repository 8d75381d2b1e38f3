"""JSON schemas as grammars of llama.cpp (GBNF). Pure: no library, no I/O."""

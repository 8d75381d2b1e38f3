"""Chat formats: builds prompts from messages, parses replies, and constrains them."""

"""What a project brings for agents: instructions in AGENTS.md, and skills."""

"""The dashboard: a page and its modules, served as they are. See docs/dashboard.md."""

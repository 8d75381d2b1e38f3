"""Backups of a whole server: its sessions, and its workspaces with their versions."""

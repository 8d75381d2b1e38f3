"""What the commands of `cfs` do, a module for each."""

"""What clients look for at their start."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would be fetched from the network when imported

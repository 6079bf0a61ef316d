"""The lock for loading a model with transformers, which is not safe in two threads at once.

While it loads one, transformers replaces ``PreTrainedModel.tie_weights`` and torch's default dtype for the whole
process. If two loads overlap, the replacement can stay for good, and every later model with a tied head lacks it.
"""

from __future__ import annotations

import threading

LOADING = threading.RLock()

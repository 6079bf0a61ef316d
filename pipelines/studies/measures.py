"""Names of the suites that studies measure. Does not import torch."""

from __future__ import annotations

INSTRUCTIONS, KNOWLEDGE, STORED = "instruction_following", "domain_knowledge", "domain_knowledge_stored"
RETAINED = "general"

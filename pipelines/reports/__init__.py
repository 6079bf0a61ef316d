"""Reports: a cycle's report, a model card, a judgement of the gate, and the evidence for it as one file."""

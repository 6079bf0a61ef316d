"""The miniature: a small fictional world and a language model trained on it, for complete runs in minutes on a CPU.

``package`` writes the shipped model as a Hugging Face folder, ``corpora`` corpora of the world as folders of Markdown.
Model and files have the usual formats: no other part of the project treats them specially. How the model was trained,
and its suites generated, is in examples/miniature.
"""

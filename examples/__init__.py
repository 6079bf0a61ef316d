"""What is built with the toolkit and is not part of it: real examples, studies, the training of the miniature."""

"""Image files to what a model reads: opened, and prepared by the checkpoint's own processor, in processes of
their own. It knows nothing of jobs and engines, and no torch.
"""

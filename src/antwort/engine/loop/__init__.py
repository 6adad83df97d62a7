"""The agentic loop: infer, run tools, infer again."""

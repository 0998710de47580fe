"""Framework-neutral runtime: engines, prefill sessions, hand-off, and the SGLang plug-in."""

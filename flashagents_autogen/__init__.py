"""An AutoGen model client on an embedded SGLang engine."""

"""The simulator: the scheduler's core driven by a trace in virtual time, and what it says about that.

From the inside out: `trace`, `swf`, `scenario` (made of `traffic`) read or draw jobs; `policies` decide who starts
next, the core or a simpler rule; `books` and `windows` keep the simulation's own accounts; `engine` is virtual time;
`run` puts a trace and several policies together. `results` is what comes out; `whatif` compares two of them; `table`,
`html` (made of `page`, `charts` and `text`) show them.
"""

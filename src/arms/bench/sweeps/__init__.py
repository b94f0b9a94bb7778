"""Many runs: what they still take, and how they are trained."""

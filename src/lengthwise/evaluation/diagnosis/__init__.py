"""Diagnosis of failures at a length: first errors, interventions and causes."""

//! Nothing: the package exists for its tests.

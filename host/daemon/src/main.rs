//! walgate
fn main() {}

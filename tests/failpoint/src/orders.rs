//! The form of the order that arms points: `name=3;other=1` ends the process at the third pass of the one, or the first
//! of the other, whichever comes first.
//!
//! Holds: the grammar and its errors. Never knows: who passes a point.

use crate::NAMES;

/// One armed point: its name, and the pass that is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) name: &'static str,
    pub(crate) pass: u64,
}

/// Reads an order. Empty arms nothing.
///
/// # Errors
/// A sentence that names the part that is wrong: a test that arms nothing by mistake would prove nothing.
pub(crate) fn parse(text: &str) -> Result<Vec<Order>, String> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(one).collect()
}

fn one(part: &str) -> Result<Order, String> {
    let (name, pass) = part.split_once('=').ok_or_else(|| format!("{part:?} must have the form name=pass"))?;
    let known = NAMES.iter().find(|known| **known == name.trim());
    let name = known.ok_or_else(|| format!("there is no point {name:?}"))?;
    match pass.trim().parse() {
        Ok(pass) if pass > 0 => Ok(Order { name, pass }),
        _ => Err(format!("{part:?} must name a pass from 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_points_can_be_armed() {
        let orders = parse(" ack.told=3; receive.chunk=1;").unwrap();
        assert_eq!(orders, [Order { name: "ack.told", pass: 3 }, Order { name: "receive.chunk", pass: 1 }]);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn a_wrong_order_is_told() {
        for (text, expect) in [
            ("ack.told", "form name=pass"),
            ("ack.tolled=1", "no point \"ack.tolled\""),
            ("ack.told=0", "a pass from 1"),
            ("ack.told=x", "a pass from 1"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(expect), "{problem}");
        }
    }
}

//! What a panic prints: its place, never its text.
//!
//! Holds: the hook of the process. A panic's text is made of whatever was at hand, a row value among it, and the stock hook
//! prints it. Refuses to know who panicked and what follows (the stage that is gone, in [`crate::pipeline`]).

use std::io::Write as _;
use std::panic::PanicHookInfo;

/// Replaces the stock hook. Called once, before anything that could panic.
pub(crate) fn print_places_only() {
    std::panic::set_hook(Box::new(|panicked| {
        // Nobody is left to tell when this fails.
        let _ = writeln!(std::io::stderr().lock(), "walgate: {}", words(panicked));
    }));
}

fn words(panicked: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = panicked.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    format!(
        "thread {:?} panicked at {place}; its text is withheld, for it may hold a row value. Report this place",
        thread.name().unwrap_or("unnamed")
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::print_places_only;

    const CHILD: &str = "WALGATE_TEST_PANICS";
    const MARKER: &str = "5ecre7_panic";

    /// The hook belongs to the whole process, so the panic is in one of its own: this test again, told to panic.
    #[test]
    fn a_panic_prints_its_place_and_not_its_text() {
        if std::env::var_os(CHILD).is_some() {
            print_places_only();
            for text in [None, Some(MARKER)] {
                let ended = std::thread::Builder::new().name("guilty".to_owned()).spawn(move || match text {
                    None => std::panic::panic_any(MARKER.to_owned()),
                    Some(text) => panic!("the row was {text}"),
                });
                assert!(ended.unwrap().join().is_err());
            }
            return;
        }
        let name = "panics::tests::a_panic_prints_its_place_and_not_its_text";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("thread \"guilty\" panicked at host/daemon/src/panics.rs:").count(), 2, "{said}");
        assert!(!said.contains(MARKER), "{said}");
    }
}

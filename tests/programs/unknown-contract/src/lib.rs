//! Exports a version of the contract that was never released: the host names it and the versions it knows.

wit_bindgen::generate!({
    inline: "
        package walgate:cdc@9.9.0;
        interface sink { describe: func() -> string; }
        world sink-plugin { export sink; }
    ",
    generate_all,
});

struct Program;

impl exports::walgate::cdc::sink::Guest for Program {
    fn describe() -> String {
        "unknown-contract".to_owned()
    }
}

export!(Program);

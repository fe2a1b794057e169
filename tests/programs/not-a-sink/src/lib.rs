//! A component of another kind: exports nothing that walgate knows.

wit_bindgen::generate!({
    inline: "
        package local:greeter@1.0.0;
        interface greeting { greet: func() -> string; }
        world greeter { export greeting; }
    ",
    generate_all,
});

struct Program;

impl exports::local::greeter::greeting::Guest for Program {
    fn greet() -> String {
        "hello".to_owned()
    }
}

export!(Program);

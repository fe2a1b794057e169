//! `walgate:host/settings`: the plugin's own settings. Not a capability: it can be read whatever the grant, after `describe`.

use crate::bindings::v0_1::walgate::host::settings::Host;
use crate::capability::{HostState, Phase};

impl Host for HostState {
    fn get(&mut self, name: String) -> Option<String> {
        // `describe` is cached by the digest of the file, so it must not depend on settings.
        if self.phase == Phase::Describe {
            return None;
        }
        self.policy.settings.get(&name).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::test_state;
    use crate::description::Capabilities;
    use crate::manifest::Policy;

    #[test]
    fn answers_its_own_settings_but_not_to_describe() {
        let settings = [("pretty".to_owned(), "true".to_owned())].into_iter().collect();
        let mut host = test_state(Policy { settings, ..Policy::default() }, Capabilities::default());
        host.begin(Phase::Describe);
        assert_eq!(Host::get(&mut host, "pretty".into()), None);
        host.begin(Phase::Open);
        assert_eq!(Host::get(&mut host, "pretty".into()).as_deref(), Some("true"));
        assert_eq!(Host::get(&mut host, "other".into()), None);
    }
}

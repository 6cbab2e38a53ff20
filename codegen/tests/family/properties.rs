//! What holds for every configuration and every text.

use peerwarp_codegen::family::{Family, Fields, NameError, Registry};
use proptest::prelude::*;

use super::odd::*;

proptest! {
    #[test]
    fn names_are_c_identifiers_and_parse_back(odd in legal()) {
        let name = odd.variant_name();
        prop_assert!(name.starts_with(|c: char| c.is_ascii_alphabetic()));
        prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        prop_assert_eq!(Odd::parse_variant(&name).unwrap(), odd.clone());
        let json = serde_json::to_string(&odd).unwrap();
        prop_assert_eq!(serde_json::from_str::<Odd>(&json).unwrap(), odd);
    }

    #[test]
    fn settings_build_the_configuration_they_describe(odd in legal()) {
        prop_assert_eq!(Odd::from_settings(&odd.describe()).unwrap(), odd);
    }

    #[test]
    fn defaults_and_candidates_of_any_key_are_legal(key in keys()) {
        match Odd::with_defaults(&key) {
            Ok(odd) => {
                prop_assert!(odd.check().is_ok());
                prop_assert_eq!(odd.key(), key);
            }
            Err(_) => prop_assert_eq!(Odd::candidates(&key).count(), 0),
        }
        for odd in Odd::candidates(&key).take(100) {
            prop_assert!(odd.check().is_ok());
        }
    }

    /// A mangled name is an error, or the name of another variant; what parses always prints back to itself.
    #[test]
    fn mangled_names_give_errors(odd in legal(), at in any::<prop::sample::Index>(), with in "[a-z0-9_.é-]{0,3}", cut in 0..3usize) {
        let name = odd.variant_name();
        let at = at.index(name.len());
        let mangled = format!("{}{with}{}", &name[..at], &name[(at + cut).min(name.len())..]);
        match Odd::parse_variant(&mangled) {
            Ok(other) => prop_assert_eq!(other.variant_name(), mangled),
            Err(NameError::Form { .. } | NameError::Part { .. } | NameError::Illegal { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,40}", field in 0..11usize) {
        let _ = Odd::parse_variant(&text);
        let _ = Odd::parse_variant(&format!("odd_jobs_{text}"));
        let _ = Registry::new([Odd::entry()]).parse(&text);
        let _ = Odd::fields()[field].parse(&text);
    }
}

"""Tests in C++ run from their source: each statement is obeyed, and what cannot be read is a failed case."""

import cpp_tests
import pytest

HEAD = 'constexpr char kName[] = "toy";\nconstexpr int kVersion = 3;\n'


def ask(text, output, *_) -> cpp_tests.Status:
    """What is under test: fails on what holds "bad", else echoes."""
    if "skip" in cpp_tests.plain(text):
        raise cpp_tests.NotOursError("There is none.")
    output.set(cpp_tests.plain(text))
    return cpp_tests.Status("INVALID_ARGUMENT", "It is bad.") if "bad" in cpp_tests.plain(text) else cpp_tests.Status()


def outcomes(tmp_path, body: str, kind: str = "TEST") -> list[tuple[str, str, str]]:
    """The cases of one test."""
    (tmp_path / "toy_test.cc").write_text(f"{HEAD}\n{kind}(Toy, One) {{\n{body}\n}}\n")
    names = {"CompareJson": cpp_tests.compare_json, "CompareTexts": cpp_tests.compare_json_texts}
    return [tuple(case) for case in cpp_tests.run_tests(str(tmp_path / "toy_test.cc"), names, {}, {"Ask": ask})]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('string out;\nTF_EXPECT_OK(Ask("a", &out));\nEXPECT_EQ(out, "a");', "passed"),
        ('string out;\nTF_EXPECT_OK(Ask("a", &out));\nEXPECT_EQ(out, "b");', "failed"),
        ('string out; TF_EXPECT_OK(Ask("bad", &out));', "failed"),
        ('string out; auto status = Ask("bad", &out); EXPECT_TRUE(absl::IsInvalidArgument(status));', "passed"),
        ('string out; auto status = Ask("good", &out); EXPECT_TRUE(absl::IsInvalidArgument(status));', "failed"),
        ('string out; auto status = Ask("bad", &out); EXPECT_THAT(status.message(), HasSubstr("bad"));', "passed"),
        ('string out; auto status = Ask("bad", &out); EXPECT_THAT(status.message(), HasSubstr("no"));', "reworded"),
        ('string out; auto status = Ask("a", &out); EXPECT_THAT(status.message(), HasSubstr("no"));', "failed"),
        ('string out; Ask("skip", &out);', "not run"),
        # Literals: raw ones over lines, joined ones, escapes, comments within and beside.
        (
            'string out; Ask(R"({"a;":\n1})", &out); TF_EXPECT_OK(CompareJson(out, R"({"a;": 1.0})"));',
            "passed",
        ),
        ('string out; Ask("{\\"a\\": NaN}", &out); TF_EXPECT_OK(CompareJson(out, R"({"a": NaN})"));', "passed"),
        ('string out; Ask("[true]", &out); TF_EXPECT_OK(CompareJson(out, "[1]"));', "failed"),
        ('string out; Ask("[9e+06]", &out); TF_EXPECT_OK(CompareTexts(out, "[9000000.0]"));', "reworded"),
        ('string out; Ask("[9e+06]", &out); TF_EXPECT_OK(CompareTexts(out, "[9000001.0]"));', "failed"),
        ('string out; // a; "b"\nAsk("a"\n  "b;", /*x;*/ &out); EXPECT_EQ(out, "ab;") << "said";', "passed"),
        (
            "string out; Ask(absl::StrCat(kName, kVersion, std::numeric_limits<uint64_t>::max()), &out);\n"
            'EXPECT_EQ(out, "toy318446744073709551615");',
            "passed",
        ),
        (
            'std::string made = "x"; made.append(3, \'[\'); string out; Ask(made, &out); EXPECT_EQ(out, "x[[[");',
            "passed",
        ),
        ('string out; Ask("a", &out); EXPECT_FALSE(out == "b"); EXPECT_TRUE(!out.length());', "failed"),
        # What cannot be read or executed.
        ('string out; Ask("a", &out); for (int i : x) Check(i);', "failed"),
        ('string out; Ask("a", &out); Unknown(out);', "failed"),
    ],
)
def test_a_case_is_decided_by_its_expectations(tmp_path, body, expected):
    cases = outcomes(tmp_path, body)
    assert (
        "failed" in {case[1] for case in cases} if expected == "failed" else [case[1] for case in cases] == [expected]
    )


def test_each_call_begins_a_case(tmp_path):
    body = 'string a, b;\nAsk("x", &a);\nEXPECT_EQ(a, "x");\nAsk("y", &b);\nEXPECT_EQ(b, "x");'
    assert outcomes(tmp_path, body) == [
        ("Toy.One 1", "passed", ""),
        ("Toy.One 2", "failed", "expected 'x', found 'y'"),
    ]


def test_a_typed_test_runs_for_both_requests(tmp_path):
    cases = outcomes(tmp_path, 'TypeParam req;\nAsk("x", &req);', "TYPED_TEST")
    assert [case[0] for case in cases] == ["Toy.One ClassificationRequest 1", "Toy.One RegressionRequest 1"]


def test_a_test_that_cannot_be_told_apart_is_an_error(tmp_path):
    (tmp_path / "toy_test.cc").write_text("TEST(Toy, One) { x; }\n")
    with pytest.raises(ValueError, match="cannot be told apart"):
        cpp_tests.run_tests(str(tmp_path / "toy_test.cc"), {}, {}, {})

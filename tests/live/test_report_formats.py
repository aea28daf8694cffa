"""One run of a sick job, and what it is in every format."""

import json
import re
import shutil
from xml.etree import ElementTree as Tree

from command_box import Box
from programs import FIXTURES

PATIENT = FIXTURES / "patients" / "dd104_mismatched_reduce_op.py"


def test_all_formats_of_one_run_agree_on_code_ranks_and_line(box: Box) -> None:
    shutil.copy(PATIENT, box.folder / "train.py")
    files = ("json=r.json", "junit=r.xml", "sarif=r.sarif", "markdown=r.md")
    forms = (*files, "html=r.html", "github")
    given = [part for form in forms for part in ("--format", form)]
    status, out, err = box.run("check", "-n", "3", *given, "train.py", "--", "sick")
    assert status == 1, err
    texts = {form: (box.folder / f"r.{form}").read_text() for form in ENDINGS}

    (finding,) = json.loads(texts["json"])["findings"]
    code, line = finding["code"], finding["locations"][0]["line"]
    (rank,) = finding["ranks"]
    assert code == "DD104"
    lines = PATIENT.read_text().splitlines()
    told_lines = [lines[one["line"] - 1] for one in finding["locations"]]
    assert any("# culprit" in text for text in told_lines)

    failures = Tree.fromstring(texts["xml"]).findall("testsuite/testcase/failure")
    assert [failure.attrib["type"] for failure in failures] == [code]
    told = failures[0].text or ""
    assert f"\nat fault: rank {rank}\n" in told
    assert re.findall(r"^train\.py:(\d+)", told, re.MULTILINE)[0] == str(line)

    (result,) = json.loads(texts["sarif"])["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert (result["ruleId"], region["startLine"]) == (code, line)
    assert result["properties"]["ranks"] == [rank]

    (annotation,) = out.splitlines()  # the job's own output is on stderr
    title = f"title={code} mismatched reduce op (proved)"
    assert annotation.startswith(f"::error file=train.py,line={line},{title}::")
    assert f"ank {rank} " in annotation

    assert f"### SICK · {code} " in texts["md"]
    assert f"**rank {rank}** · `train.py:{line}`" in texts["md"]

    page = texts["html"]
    assert "<title>SICK: train.py" in page
    assert f"</span> {code} mismatched reduce op</h3>" in page
    assert f'<strong class="culprit">rank {rank}</strong>' in page
    marked = re.findall(r"<code>train\.py:(\d+)</code>", page)
    assert marked[0] == str(line)


ENDINGS = ("json", "xml", "sarif", "md", "html")

"""What the search page says, in the languages it can be searched in.

A missing translation is a type error, not a surprise: every language fills every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NAMES: Mapping[str, str] = {"en": "English", "zh": "中文", "ja": "日本語"}


@dataclass(frozen=True, slots=True)
class Texts:
    """All words of the page in one language. {braces} are filled in with numbers only."""

    tagline: str
    search: str
    placeholder: str
    drop_image: str
    searching_with_image: str
    image_weight: str
    more: str
    recent_searches: str
    clear: str
    # How it searches
    ranking: str
    mode: str
    modes: tuple[str, str, str]  # clm, cm, cl
    mode_help: str
    tuned_weight: str
    weight: str
    min_score: str
    query_language: str
    automatic: str
    # Filters
    filters: str
    tags: str
    folders: str
    taken_from: str
    taken_until: str
    caption_language: str
    written_by: str
    anything: str
    people: str
    models: str
    reset_filters: str
    # Results
    open_image: str
    newest: str
    hits_on_page: str
    like_this: str
    no_hits: str
    no_hits_advice: str
    unknown_words: str
    nothing_captioned: str
    unreadable: str
    # The large view
    image: str
    previous: str
    next: str
    find_similar: str
    captions: str
    no_captions: str
    by_model: str
    size: str
    taken: str
    files: str
    score: str
    similar: str
    duplicates: str
    unknown_image: str
    # Collections and indexing
    collection: str
    interface_language: str
    library: str
    images_count: str
    add_folder: str
    add_folder_help: str
    add_folder_button: str
    stop: str
    indexing: str
    indexed: str
    stopped: str
    skipped: str
    refresh: str
    not_a_folder: str
    already_indexing: str
    # When it does not work
    no_index: str
    no_index_advice: str
    index_empty: str
    index_problem: str
    bad_upload: str
    bad_query: str
    problem: str


_EN = Texts(
    tagline="Find images with a sentence",
    search="Search",
    placeholder="Describe an image in English, 中文 or 日本語",
    drop_image="Search with an image",
    searching_with_image="Your image",
    image_weight="Share of the image beside the words",
    more="More",
    recent_searches="Recent searches",
    clear="Clear",
    ranking="Ranking",
    mode="Compare the words with",
    modes=("Both (CLM)", "ImageStore (CM)", "Captions (CL)"),
    mode_help="CM looks at the image, CL at its captions in any language, CLM weighs both.",
    tuned_weight="Weigh captions as tuned for the language",
    weight="Weight of captions",
    min_score="Leave out scores below",
    query_language="Language of the words",
    automatic="Automatic",
    filters="Filters",
    tags="Tags",
    folders="Folders",
    taken_from="Taken from",
    taken_until="Taken until",
    caption_language="Has a caption in",
    written_by="Captions by",
    anything="Any",
    people="People",
    models="Models",
    reset_filters="Reset filters",
    open_image="Open image {rank}",
    newest="Newest images",
    hits_on_page="{count} images shown, best first",
    like_this="ImageStore like this one",
    no_hits="No image matches.",
    no_hits_advice="Try other words, fewer filters or a lower score limit.",
    unknown_words="The model knows none of these words, so the order means little.",
    nothing_captioned="No image here has a caption. Compare with images instead.",
    unreadable="image not readable",
    image="Image",
    previous="Previous",
    next="Next",
    find_similar="Search with this image",
    captions="Captions",
    no_captions="No captions yet.",
    by_model="written by a model",
    size="Size",
    taken="Taken",
    files="Files",
    score="Score",
    similar="Similar images",
    duplicates="Near-duplicates",
    unknown_image="This image is not in the collection.",
    collection="Collection",
    interface_language="Language of this page",
    library="Library",
    images_count="{count} images",
    add_folder="Folder on this computer",
    add_folder_help="All images in this folder and below become searchable. Nothing is changed.",
    add_folder_button="Index this folder",
    stop="Stop",
    indexing="Indexing",
    indexed="Done: {added} new, {unchanged} unchanged, {removed} removed.",
    stopped="Stopped: {added} new images are kept. Start again to go on.",
    skipped="{count} files could not be read:",
    refresh="Look for changes",
    not_a_folder="There is no such folder on this computer.",
    already_indexing="Another folder is being indexed; wait until it is done.",
    no_index="Nothing is indexed here yet.",
    no_index_advice="Open Library, type the path of a folder with images and index it, or run:",
    index_empty="This collection holds no images yet.",
    index_problem="This collection cannot be opened.",
    bad_upload="This file cannot be used as an image.",
    bad_query="This search cannot be done.",
    problem="Something went wrong.",
)

_ZH = Texts(
    tagline="用一句话找图片",
    search="搜索",
    placeholder="用中文、English 或日本語描述图片",
    drop_image="用图片搜索",
    searching_with_image="你的图片",
    image_weight="图片相对于文字的比重",
    more="更多",
    recent_searches="最近的搜索",
    clear="清除",
    ranking="排序",
    mode="文字与什么比较",
    modes=("两者 (CLM)", "图片 (CM)", "描述 (CL)"),
    mode_help="CM 看图片本身，CL 看任何语言的描述，CLM 综合两者。",
    tuned_weight="按语言自动设定描述的权重",
    weight="描述的权重",
    min_score="不显示低于此分数的图片",
    query_language="文字的语言",
    automatic="自动",
    filters="筛选",
    tags="标签",
    folders="文件夹",
    taken_from="拍摄日期从",
    taken_until="拍摄日期到",
    caption_language="有这种语言的描述",
    written_by="描述的作者",
    anything="不限",
    people="人",
    models="模型",
    reset_filters="清除筛选",
    open_image="打开第 {rank} 张图片",
    newest="最新的图片",
    hits_on_page="显示 {count} 张图片，最相关的在前",
    like_this="与这张相似的图片",
    no_hits="没有符合的图片。",
    no_hits_advice="请换一种说法、减少筛选条件或降低分数下限。",
    unknown_words="模型不认识这些词，下面的顺序意义不大。",
    nothing_captioned="这里的图片都没有描述，请改为与图片比较。",
    unreadable="无法读取图片",
    image="图片",
    previous="上一张",
    next="下一张",
    find_similar="用这张图片搜索",
    captions="描述",
    no_captions="还没有描述。",
    by_model="由模型撰写",
    size="尺寸",
    taken="拍摄时间",
    files="文件",
    score="分数",
    similar="相似的图片",
    duplicates="近似重复",
    unknown_image="这个图库里没有这张图片。",
    collection="图库",
    interface_language="页面语言",
    library="图库",
    images_count="{count} 张图片",
    add_folder="本机上的文件夹",
    add_folder_help="该文件夹及其子文件夹里的图片都可以被搜索，文件不会被改动。",
    add_folder_button="索引这个文件夹",
    stop="停止",
    indexing="正在索引",
    indexed="完成：新增 {added}，未变 {unchanged}，移除 {removed}。",
    stopped="已停止：保留了新增的 {added} 张图片，再次开始即可继续。",
    skipped="有 {count} 个文件无法读取：",
    refresh="检查变化",
    not_a_folder="本机上没有这个文件夹。",
    already_indexing="正在索引另一个文件夹，请等它完成。",
    no_index="这里还没有索引。",
    no_index_advice="打开“图库”，输入图片文件夹的路径并索引，或运行：",
    index_empty="这个图库里还没有图片。",
    index_problem="无法打开这个图库。",
    bad_upload="这个文件不能当作图片使用。",
    bad_query="无法进行这次搜索。",
    problem="出了点问题。",
)

_JA = Texts(
    tagline="文章で写真をさがす",
    search="検索",
    placeholder="日本語、English、中文で写真を説明してください",
    drop_image="画像で検索",
    searching_with_image="あなたの画像",
    image_weight="言葉に対する画像の割合",
    more="もっと見る",
    recent_searches="最近の検索",
    clear="消去",
    ranking="並べ方",
    mode="言葉と比べるもの",
    modes=("両方 (CLM)", "画像 (CM)", "説明文 (CL)"),
    mode_help="CM は画像そのもの、CL はあらゆる言語の説明文、CLM は両方を見ます。",
    tuned_weight="説明文の重みを言語に合わせる",
    weight="説明文の重み",
    min_score="これより低いスコアを除く",
    query_language="言葉の言語",
    automatic="自動",
    filters="絞り込み",
    tags="タグ",
    folders="フォルダー",
    taken_from="撮影日（から）",
    taken_until="撮影日（まで）",
    caption_language="説明文の言語",
    written_by="説明文の作者",
    anything="すべて",
    people="人",
    models="モデル",
    reset_filters="絞り込みを解除",
    open_image="{rank} 番目の写真を開く",
    newest="新しい写真",
    hits_on_page="{count} 枚を表示（関連の高い順）",
    like_this="この写真に似た写真",
    no_hits="当てはまる写真がありません。",
    no_hits_advice="言葉を変える、絞り込みを減らす、スコアの下限を下げるなどをお試しください。",
    unknown_words="モデルの知らない言葉です。下の順序にあまり意味はありません。",
    nothing_captioned="説明文のある写真がありません。画像と比べてください。",
    unreadable="画像を読めません",
    image="写真",
    previous="前へ",
    next="次へ",
    find_similar="この写真で検索",
    captions="説明文",
    no_captions="説明文はまだありません。",
    by_model="モデルが作成",
    size="大きさ",
    taken="撮影日時",
    files="ファイル",
    score="スコア",
    similar="似た写真",
    duplicates="ほぼ同じ写真",
    unknown_image="この写真はコレクションにありません。",
    collection="コレクション",
    interface_language="このページの言語",
    library="ライブラリ",
    images_count="{count} 枚",
    add_folder="このコンピューターのフォルダー",
    add_folder_help="このフォルダー以下のすべての写真が検索できるようになります。ファイルは変更しません。",
    add_folder_button="このフォルダーを登録",
    stop="中止",
    indexing="登録中",
    indexed="完了：追加 {added}、変更なし {unchanged}、削除 {removed}。",
    stopped="中止しました：追加した {added} 枚は残ります。もう一度始めると続きから進みます。",
    skipped="{count} 個のファイルを読めませんでした：",
    refresh="変更を調べる",
    not_a_folder="このコンピューターにそのフォルダーはありません。",
    already_indexing="別のフォルダーを登録中です。終わるまでお待ちください。",
    no_index="ここにはまだ何も登録されていません。",
    no_index_advice="「ライブラリ」で写真のフォルダーのパスを入力して登録するか、次を実行してください：",
    index_empty="このコレクションにはまだ写真がありません。",
    index_problem="このコレクションを開けません。",
    bad_upload="このファイルは画像として使えません。",
    bad_query="この検索はできません。",
    problem="問題が起きました。",
)

TEXTS: Mapping[str, Texts] = {"en": _EN, "zh": _ZH, "ja": _JA}


def reader_language(locale: str | None) -> str:
    """The interface language for a browser locale such as "zh-Hant-TW"; English for others."""
    language = (locale or "").replace("_", "-").split("-")[0].lower()
    return language if language in TEXTS else "en"

"""Street scenes: true perspective, the nearest thing wins, the sun casts shadows, changes do what they are called."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nescio.datasets import load, scenes, split_dataset
from nescio.datasets.image_set import ImageSet
from nescio.datasets.scene_changes import AIRLIGHT, Darkness, Fog, Rain, shifts
from nescio.datasets.scene_layout import CLASSES, GRASS, MARKING, PAVEMENT, ROAD, SKY, VOID, Parts, street
from nescio.datasets.scenes import DISTANT, FIRST, FOCAL, FRONT, NEAR, ROUND, TEST, TRAIN, UP, scene, sunwards
from nescio.errors import BadInput
from nescio.identity import to_json

GROUND = (ROAD, MARKING, PAVEMENT, GRASS)
SIZE = 64


def images(rows=(0, 1, 2), size=SIZE):
    """(pixels, index) of some test scenes."""
    test, rows = load(f"scenes@{size}").test, np.array(rows)
    return torch.from_numpy(test.backing.read(rows)), torch.from_numpy(test.index[rows])


@pytest.fixture
def smooth(monkeypatch):
    """Streets whose trees have no ragged outline, so that a formula says what is hit."""

    def make(index, seed=0):
        here = street(index, seed)
        here.parts.ragged[:] = [0.0] * len(here.parts.ragged)
        return here

    monkeypatch.setattr(scenes, "street", make)


# ---- the dataset


def test_split_dataset__names_sizes_and_splits():
    data = load("scenes@32")
    assert data.classes == CLASSES and len(CLASSES) >= 8 and data.void == VOID
    assert data.shape == (32, 64) and data.channels == 3
    assert (len(data.train), len(data.test)) == (TRAIN, TEST) == (400, 100)
    assert len(np.unique(np.concatenate([data.train.index, data.test.index]))) == 500
    parts = split_dataset(data)
    assert [len(part) for part in (parts.train, parts.val, parts.test, parts.out)] == [360, 40, 100, 0]
    assert data.revision != load("scenes@64").revision
    assert load("scenes").shape == (256, 512)


def test_load__a_size_without_room_for_a_street_is_refused():
    with pytest.raises(BadInput, match="scenes@8"):
        load("scenes@8")


def test_scenes__only_the_scenes_that_are_read_are_rendered(monkeypatch):
    seen, real = [], scenes.scene
    monkeypatch.setattr(scenes, "scene", lambda index, height: seen.append(index) or real(index, height))
    data = scenes.scenes(scenes.DatasetRequest(size=32))
    assert seen == []
    test = data.test.take(np.array([5, 2]))
    pixels, maps = test.pixels, test.label_maps()
    assert sorted(seen) == [TRAIN + 2, TRAIN + 5]
    assert np.array_equal(pixels[1], real(TRAIN + 2, 32).image())
    assert np.array_equal(maps[1], real(TRAIN + 2, 32).labels)
    assert np.array_equal(test.source(0), pixels[0]) and len(seen) == 2
    assert data.mean == data.train.backing.moments[0] and len(seen) == 2


def test_scenes__all_of_a_split_is_the_same_as_its_rows(monkeypatch):
    monkeypatch.setattr(scenes, "TEST", 9)
    data = scenes.scenes(scenes.DatasetRequest(size=32))
    assert len(data.test.backing.array) == 9
    assert np.array_equal(data.test.backing.array[[7, 3]], data.test.backing.read(np.array([7, 3])))
    assert np.array_equal(data.test.maps.array[[7], ..., 0], data.test.label_maps(np.array([7])))


def test_load__every_class_occurs_and_none_is_everything():
    maps = load("scenes@32").test.label_maps(slice(40))
    share = np.array([(maps == label).mean() for label in range(len(CLASSES))])
    assert (share > 0.001).all() and share.max() < 0.5
    assert 0 < (maps == VOID).mean() < 0.1
    assert set(np.unique(maps)) == {*range(len(CLASSES)), VOID}


def test_scene__a_scene_is_a_function_of_index_seed_and_size(monkeypatch):
    first = scene(7, SIZE)
    monkeypatch.setenv("NESCIO_THREADS", "1")
    assert np.array_equal(
        first.image(), scenes.scenes(scenes.DatasetRequest(size=SIZE)).train.backing.read(np.array([7]))[0]
    )
    for other in (scene(8, SIZE), scene(7, SIZE, seed=1)):
        assert (first.image() != other.image()).mean() > 0.5
    large = scene(7, 2 * SIZE)
    assert (large.labels[::2, ::2] == first.labels).mean() > 0.85
    assert street(7) == street(7)


# ---- geometry


def ray(seen, row, column):
    x, y, z = seen.rays
    return np.array([x[column], y[row, 0], z[column]], float)


def nearest(seen, start, direction, least):
    """The nearest part on a ray by the textbook's formulas, one part at a time: (how far, number or None)."""
    parts, best = seen.street.parts, (np.inf, None)
    for number, (low, high) in enumerate(zip(map(np.array, parts.low), map(np.array, parts.high), strict=True)):
        if parts.round[number]:
            radius = (high - low) / 2
            away, along = (start - (low + high) / 2) / radius, direction / radius
            roots = np.roots([along @ along, 2 * away @ along, away @ away - 1])
            enter, leave = sorted(roots.real) if np.isreal(roots).all() else (1, 0)
        else:
            with np.errstate(divide="ignore"):
                ends = np.sort([(low - start) / direction, (high - start) / direction], 0)
            enter, leave = ends[0].max(), ends[1].min()
        far = enter if enter > least else leave
        if leave > max(enter, least) and far < best[0] and (enter > least or least == 0):
            best = far, number
    return best


def some_pixels(seen, count, among=None):
    places = np.argwhere(np.ones(seen.labels.shape, bool) if among is None else among)
    return places[np.random.default_rng(0).permutation(len(places))[:count]]


@pytest.mark.parametrize("index", [0, 4, 11])
def test_scene__every_pixel_shows_the_nearest_thing_at_its_exact_depth(index, smooth):
    seen = scene(index, SIZE)
    start = np.array([seen.street.across, seen.street.height, 0.0])
    hits = 0
    for row, column in some_pixels(seen, 100):
        direction = ray(seen, row, column)
        far, number = nearest(seen, start, direction, NEAR)
        ground = -start[1] / direction[1] if direction[1] < 0 else DISTANT
        assert seen.depth[row, column] == pytest.approx(min(far, ground), rel=1e-3)
        if far < ground:
            hits += 1
            assert seen.labels[row, column] == seen.street.parts.label[number]
        else:
            assert seen.labels[row, column] in (GROUND if direction[1] < 0 else (SKY,))
    assert hits > 25


def test_scene__the_ground_is_a_plane_below_the_horizon():
    seen = scene(3, SIZE)
    row, column = np.nonzero(np.isin(seen.labels, GROUND))
    below = (row + 0.5 - seen.street.horizon * SIZE) / (FOCAL * SIZE)
    assert (below > 0).all()
    np.testing.assert_allclose(seen.depth[row, column], np.minimum(seen.street.height / below, DISTANT), rtol=1e-4)
    x, y, z = (axis[row, column] for axis in seen.surface_points)
    near = z < 60
    assert np.abs(y[near]).max() < 1e-3
    away = np.abs(x - seen.street.bend * z * z)
    on_road = np.isin(seen.labels[row, column], (ROAD, MARKING))
    assert (away[on_road & near] <= seen.street.half + 1e-3).all()
    assert (away[~on_road & near] >= seen.street.half - 1e-3).all()


def test_scene__ragged_trees_have_holes(smooth):
    whole = sum((scene(index, SIZE).labels == CLASSES.index("vegetation")).sum() for index in range(6))
    with pytest.MonkeyPatch.context() as real:
        real.setattr(scenes, "street", street)
        ragged = sum((scene(index, SIZE).labels == CLASSES.index("vegetation")).sum() for index in range(6))
    assert 0.4 * whole < ragged < 0.95 * whole


def test_scene__surfaces_have_texture(monkeypatch):
    def contrast():
        seen = scene(3, SIZE)
        road = (seen.labels == ROAD) & (seen.depth < 15)
        return seen._surface[0].reshape(SIZE, -1, 3)[road].std(0).mean()

    rough = contrast()
    monkeypatch.setattr(scenes, "noise", lambda: np.zeros((256, 256), np.float32))
    assert contrast() < 0.01 * rough


# ---- light


@pytest.mark.parametrize("altitude", [20.0, 50.0])
def test_sunwards__shadows_are_where_something_stands_before_the_sun(altitude, smooth):
    right = total = dark = 0
    for index in (1, 5, 9):
        seen = scene(index, SIZE)
        direction = np.array(sunwards(altitude, seen.street.azimuth))
        shadow = seen._sunlit(altitude) == 0
        x, y, z = seen.surface_points
        among = np.isin(seen.labels, GROUND) & (z < 60) & (np.abs(x) < 15)
        for row, column in some_pixels(seen, 50, among):
            place = np.array([axis[row, column] for axis in (x, y, z)], float)
            blocked = nearest(seen, place + np.array([0, 0.01, 0]), direction, 0)[1] is not None
            right += blocked == shadow[row, column]
            dark += blocked
            total += 1
    assert right / total > 0.95
    assert 0.1 < dark / total < 0.95


@pytest.fixture
def stage(monkeypatch):
    """A straight, empty street with a wall across it and a ball beside, under a sun of one's choice."""

    def make(azimuth, size=SIZE):
        parts = Parts()
        parts.add(4, (0.5, 0.5, 0.5), (-3, 3), (0, 4), (20, 25))
        parts.add(8, (0.5, 0.5, 0.5), (4, 6), (1, 3), (9, 11), round=True)
        made = replace(street(2), parts=parts, azimuth=azimuth, yaw=0.0, across=0.5)
        monkeypatch.setattr(scenes, "street", lambda index, seed: made)
        return scene(0, size)

    return make


@pytest.mark.parametrize(("azimuth", "towards"), [(np.pi, 1.0), (0.0, 0.0)])  # the sun behind the camera, and before it
def test_scene__faces_towards_the_sun_are_lit_and_faces_away_are_not(azimuth, towards, stage):
    seen = stage(azimuth)
    light = seen._sunlit(30.0)
    front = (seen.material == FIRST) & (seen.facing == FRONT)
    assert front.any() and (light[front] > 0).mean() == pytest.approx(towards, abs=0.05)
    ball = light[seen.facing == ROUND]
    assert ball.max() > (0.9 if towards else 0.2) and ball.std() > 0.02  # round: every direction is there
    assert light[(seen.facing == UP) & (seen.labels != SKY)].max() == pytest.approx(0.5)


@pytest.mark.parametrize("altitude", [60.0, 30.0, 15.0])
def test_scene__a_shadow_is_as_long_as_the_height_over_the_tangent(altitude, stage):
    seen = stage(azimuth=0.0, size=256)  # the wall stands between camera and sun
    x, _, z = seen.surface_points
    before = np.isin(seen.labels, GROUND) & (np.abs(x) < 2.5) & (z < 20) & (z > 4)
    shadow = z[before & (seen._sunlit(altitude) == 0)]
    assert 20 - shadow.min() == pytest.approx(4 / np.tan(np.radians(altitude)), abs=0.9)


def test_daylight__a_sinking_sun_is_darker_and_redder():
    levels = (60, 30, 15, 8, 3, 0, -3, -6)
    brightness = [np.mean([scene(index, SIZE).image(altitude).mean() for index in range(3)]) for altitude in levels]
    assert brightness == sorted(brightness, reverse=True) and brightness[-1] < 0.3 * brightness[0]
    suns = [scenes.daylight(altitude)[0] for altitude in levels[:5]]
    redness = [sun[0] / sun[2] for sun in suns]
    assert redness == sorted(redness) and redness[-1] > 2 * redness[0]


def test_scene__at_night_lamps_and_windows_give_light():
    seen = scene(5, SIZE)
    without = replace(seen, street=replace(seen.street, lamps=()))
    night, dark = seen.image(-5).astype(float), without.image(-5).astype(float)
    x, _, z = seen.surface_points
    at_x, _, at_z = np.array(seen.street.lamps).T
    away = np.hypot(x[..., None] - at_x, z[..., None] - at_z).min(2)
    gain = (night - dark).mean(2)
    road = seen.labels == ROAD
    assert gain[road & (away < 3)].mean() > 1.3 * gain[road & (away > 9)].mean() > 1
    lit = seen._surface[1]
    assert len(lit) and dark.reshape(-1, 3)[lit].mean() > 3 * np.median(dark)
    assert np.array_equal(seen.image(30), without.image(30))  # off by day


# ---- changes


@pytest.mark.parametrize("change", [Darkness(90), Darkness(75), Fog(0), Rain(0)])
def test_fog__the_clean_setting_is_the_clean_image(change):
    pixels, index = images()
    assert torch.equal(change.apply(pixels, index), pixels)


@pytest.mark.parametrize("change", [Darkness(10), Fog(0.03), Rain(0.5)])
def test_fog__a_scene_does_not_depend_on_who_else_is_in_its_batch(change):
    pixels, index = images((0, 1, 2, 3))
    whole = change.apply(pixels, index)
    assert whole.shape == pixels.shape and whole.dtype == torch.uint8
    order = [2, 0]
    assert torch.equal(change.apply(pixels[order], index[order]), whole[order])


def test_scene__fog_follows_its_formula_at_the_depth_of_each_pixel():
    pixels, index = images((4,))
    seen = scene(int(index[0]), SIZE)
    through = np.exp(-0.02 * seen.depth.astype(float))[..., None]
    expected = pixels[0].numpy() * through + AIRLIGHT * (1 - through)
    assert np.abs(Fog(0.02).apply(pixels, index)[0].numpy() - expected).max() < 0.51
    faint = Fog(1e-5).apply(pixels, index)
    assert (faint.float() - pixels.float()).abs().max() <= 2  # it begins without a jump, also in the sky


def test_scene__darkness_is_the_same_scene_under_a_lower_sun():
    pixels, index = images((4,))
    seen = scene(int(index[0]), SIZE)
    assert np.array_equal(Darkness(5).apply(pixels, index)[0].numpy(), seen.image(5))
    assert Darkness(5).level == 85


def test_scene__wet_ground_mirrors_what_stands_above_it():
    pixels, index = images((4,))
    seen, image = scene(int(index[0]), SIZE), pixels[0].numpy()
    red = image.copy()
    red[~np.isin(seen.labels, GROUND)] = (255, 0, 0)
    plain, mirrored = (Rain(0.3).changed(seen, picture).astype(float) for picture in (image, red))
    road = seen.labels == ROAD
    more = (mirrored - plain)[..., 0] - (mirrored - plain)[..., 2]
    far, near = road & (seen.depth > 15), road & (seen.depth < 6)
    assert more[far].mean() > 10 and more[far].mean() > 2 * more[near].mean()


def test_scene__rain_falls_in_streaks_that_follow_strength_seed_and_scene():
    seen, other = scene(4, 128), scene(5, 128)
    white = np.full((128, 256, 3), 90, np.uint8)

    def streaks(strength, seed=0, which=seen):
        image = Rain(strength, seed).changed(replace(which, depth=np.zeros_like(which.depth) + 0.01), white)
        return image[..., 0] > np.median(image[..., 0]) + 5

    heavy = streaks(1.0)
    assert 0.05 < heavy.mean() < 0.4 and streaks(0.5).mean() < 0.7 * heavy.mean()
    assert (heavy != streaks(1.0, seed=1)).mean() > 0.05 and (heavy != streaks(1.0, which=other)).mean() > 0.05
    along, across = (heavy[1:] == heavy[:-1]).mean(), (heavy[:, 1:] == heavy[:, :-1]).mean()
    assert along > across + 0.02  # longer than wide


@pytest.mark.parametrize(
    ("one", "following", "jumps"),
    [
        (Fog(0.03), Fog(0.03003), 0),
        (Rain(0.5), Rain(0.501), 0),
        (Darkness(8), Darkness(7.99), 0.003),  # edges of shadows, which are sharp, move on
    ],
)
def test_fog__a_little_more_of_a_change_is_a_little_change(one, following, jumps):
    pixels, index = images((4,))
    moved = (one.apply(pixels, index).float() - following.apply(pixels, index).float()).abs()
    assert (moved > 2).float().mean() <= jumps and 0 < moved.mean() < 0.3


def test_fog__other_images_are_refused():
    pixels, index = images()
    sentence = "can only be applied to the dataset `scenes`"
    for change in (Darkness(10), Fog(0), Rain(0.5)):
        with pytest.raises(BadInput, match=sentence):
            change.apply(pixels, index + 1)
        with pytest.raises(BadInput, match=sentence):
            change.apply(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), index[:2])
        with pytest.raises(BadInput, match=sentence):
            change.apply(pixels[..., :1], index)


def test_fog__settings_out_of_range_are_refused():
    for make in (lambda: Darkness(120), lambda: Fog(-0.1), lambda: Rain(1.5)):
        with pytest.raises(BadInput):
            make()


def test_image_set__the_usual_levels_rise_and_each_moves_the_image_further():
    pixels, index = images((0, 1), size=32)
    for name, changes in shifts().items():
        assert {change.condition for change in changes} == {name}
        levels = [change.level for change in changes]
        assert levels == sorted(set(levels)) and levels[0] > 0
        moved = [float((change.apply(pixels, index).float() - pixels.float()).abs().mean()) for change in changes]
        assert moved == sorted(moved) and moved[0] > 0.3
    every = [change for changes in shifts().values() for change in changes]
    assert len({to_json(ImageSet("scenes", change=change)) for change in every}) == len(every)


# ---- what a network makes of them


def fitted(data, epochs=10, width=32):
    """A small dilated network, trained on the clean training scenes."""
    from torch import nn

    def layer(a, b, stride=1, dilation=1):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, dilation, dilation, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    torch.manual_seed(0)
    dilated = [layer(width, width, 1, reach) for reach in (1, 2, 4, 8)]
    last = nn.Conv2d(width, len(CLASSES), 1), nn.Upsample(scale_factor=2, mode="bilinear")
    net = nn.Sequential(layer(3, width, 2), *dilated, *last)
    pixels, maps = torch.from_numpy(data.train.backing.array), torch.from_numpy(data.train.maps.array[..., 0]).long()
    optimiser = torch.optim.AdamW(net.parameters(), 3e-3)
    batches = len(pixels) // 8
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, epochs * batches)
    for _ in range(epochs):
        for rows in torch.randperm(len(pixels))[: 8 * batches].split(8):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(shown(pixels[rows])), maps[rows], ignore_index=VOID).backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def shown(pixels):
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def mean_iou(called, truth):
    known = truth != VOID
    table = np.bincount(truth[known] * len(CLASSES) + called[known], minlength=len(CLASSES) ** 2).reshape(11, 11)
    both = np.diag(table)
    return (both / np.maximum(table.sum(0) + table.sum(1) - both, 1)).mean()


@pytest.mark.slow
def test_shifts__a_small_network_learns_the_scenes_and_fails_more_the_darker_and_the_foggier_they_are():
    from scipy.stats import spearmanr

    data, rows = load("scenes@48"), np.arange(40)
    net, truth = fitted(data), data.test.label_maps(rows).astype(int)
    pixels, index = torch.from_numpy(data.test.backing.read(rows)), torch.from_numpy(data.test.index[rows])

    @torch.no_grad()
    def score(images):
        return mean_iou(net(shown(images)).argmax(1).numpy(), truth)

    clean = score(pixels)
    majority = max(mean_iou(np.full_like(truth, label), truth) for label in range(len(CLASSES)))
    assert clean > majority + 0.3
    for name in ("darkness", "fog"):
        changes = shifts()[name]
        scores = [clean, *(score(change.apply(pixels, index)) for change in changes)]
        assert spearmanr([0, *(change.level for change in changes)], scores)[0] <= -0.9, (name, scores)
        assert scores[-1] < clean - 0.1
